// Package admin is the HTTP endpoint of a running relay: probes, metrics, the status as JSON and as a page.
//
//	/livez        200 while the process works
//	/readyz       200 if every pipeline is ready, 503 otherwise, with the reasons as JSON
//	/metrics      Prometheus
//	/api/status   the status, as `relay status --json` prints it; 503 if one cannot be read
//	/api/dead     dead letters, a page at a time; ?pipeline= topic= error= older_than=
//	              newer_than= id= closed= limit=; the header Link has the next page
//	/api/dead/replay, /api/dead/discard    POST {"pipeline": "...", "ids": ["17"] | "all"} and
//	              optionally topic, error, older_than, newer_than, dry_run
//	/             the status as a page
//
// # Access
//
// If a token is set, / and /api require it: as "Authorization: Bearer TOKEN", or as the password of HTTP
// Basic authentication, for browsers. Probes and metrics need no token, as orchestrators and Prometheus
// expect. They contain pipeline names, counts and the reasons of outages, but no events and no secrets.
//
// Requests that change something must be JSON and must not come from another site.
// Without a token, / and /api accept only localhost and IP addresses as Host, because
// a name may have been pointed to this machine (DNS rebinding).
package admin
