// Package router gives the events of a buffer to several sinks. A claim writes one ledger row for the sink '*'. The process
// that claimed it matches the topics against the registry, and routes the row: one transaction replaces it by a row for each sink that
// takes any of its events. Rows that share events carry the same claim_id, and a settle deletes what no other row of the
// claim holds (package ledger).
//
//	claim ──▶ '*' leased ──route──▶ a waiting row for each sink ──▶ as every batch
//	               └──lease over──▶ taken over and routed
package router
