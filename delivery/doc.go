// Package delivery sends a claimed batch and records the outcome of every event. Retries, backoff, halving of
// rejected batches and dead letters are decided here for all sinks; a sink only sends and classifies.
//
//	Worker.Work          worker.go
//	 ├ deferUnavailable  defer.go     not sent: its address, or the sink, is known to be unavailable
//	 ├ Sink.Send
//	 ├ interpret         result.go    the Send's error becomes a result, here and nowhere else
//	 ├ record            record.go    circuit breakers (breakers.go) and the poison detector count it
//	 ├ decide            decide.go    what becomes of each event: delivered, retried and when, or a dead letter
//	 └ settle            settle.go    written down in the buffer
//
// order.go keeps order by key when a batch is sent again in part; backoff.go is the time before a retry.
package delivery
