// Package admin is the HTTP endpoint of a running relay: probes, metrics, the
// status as JSON and as a page.
//
//	/livez        200 while the process works
//	/readyz       200 when every pipeline is ready, else 503; JSON says which is not, and why
//	/metrics      Prometheus
//	/api/status   the status, as `relay status --json` prints it; 503 when one could not be read
//	/api/dead     dead letters, a page at a time; ?pipeline= topic= error= older_than=
//	              newer_than= id= closed= limit=; the header Link names the next page
//	/api/dead/replay, /api/dead/discard    POST {"pipeline": "...", "ids": ["17"] | "all"} and, if
//	              wanted, topic, error, older_than, newer_than, dry_run
//	/             the status as a page
//
// # Who may see what
//
// Where a token is set, / and /api ask for it: as "Authorization: Bearer TOKEN", or,
// for browsers, as the password of HTTP Basic authentication with any user name.
// Probes and metrics are open, because orchestrators and Prometheus ask for them
// without: they name pipelines, counts, and why a server cannot be reached, and no
// event and no secret.
//
// What changes something takes JSON only, and nothing that a browser sends for the
// page of another site. Without a token, / and /api answer to localhost and to
// addresses only, not to names: one could have been pointed to this machine.
package admin
