// Package httpsink sends a batch as one HTTP request.
//
// # The way of a request
//
//	body       {"pipeline", "group_id", "events": [ENVELOPE, ...]}, or the one of Config.Format
//	request    a jq program (Config.Request) may make another body of it
//	limit      the request waits for Config.Rate and Config.MaxInFlight, and gets a token (Config.OAuth2)
//	send       with Idempotency-Key: <group_id>, so that the server can recognize a batch that is sent again
//	classify   the status decides: delivered, rejected or an outage
//	results    unless it is an outage, a jq program (Config.Results) may find in the response which events failed
//
// Send returns a *sink.SplitError before the request if the batch has to be split: its events have
// different URLs or headers, or they exceed Config.MaxBytes.
//
// # Statuses
//
// 2xx means delivered. An outage is 3xx (redirects are not followed), 401, 403, 404, 405, 407, 408,
// 421, 425, 429, 5xx, and no response at all. It lasts as long as Retry-After says, if it is given.
// Any other 4xx rejects the whole batch. Config.Refused and Config.Unavailable override this.
//
// The batch itself may cause an outage (sink.ErrMaybePoison) if the status is a 5xx, or if the time runs
// out or the connection is lost after the request was written.
package httpsink
