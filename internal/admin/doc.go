// Package admin is the HTTP endpoint of a running relay: probes, metrics, the status as JSON and as a page.
//
//	/livez        200 while the process works
//	/readyz       200 if every pipeline is ready, 503 otherwise, with the class of each reason as JSON
//	/metrics      Prometheus
//	/api/status   the status, as `relay status --json` prints it; 503 if one cannot be read
//	/api/dead     dead letters, a page at a time; ?pipeline= sink= topic= error=
//	              older_than= newer_than= id= closed= limit=; the header Link has the next page
//	/api/dead/replay, /api/dead/discard    POST {"pipeline": "...", "ids": ["17"] | "all"} and
//	              optionally sink, topic, error, older_than, newer_than, reason, dry_run
//	/             the status as a page
//
// # Access
//
// If a token is set, / and /api require it: as "Authorization: Bearer TOKEN", or as the password of HTTP
// Basic authentication, for browsers. Probes and metrics need no token, as orchestrators and Prometheus
// expect. They contain pipeline names and counts, and of what is not ready the class: database, sink, stalled or
// refusing. /readyz gives the reason, which may quote a sink and so an event, only to requests with the token. If
// no token is set, nobody gets it there: any page in a browser on the machine can read /readyz (DNS rebinding).
//
// Requests that change something must be JSON and must not come from another site.
// Without a token, / and /api accept only localhost and IP addresses as Host, because
// a name may have been pointed to this machine (DNS rebinding).
package admin
