// Package httpsink sends a batch as one HTTP request.
//
// # The way of a request
//
//	Prepare   the address: events with another URL or other headers need another request   address.go
//	          the body: {"pipeline", "group_id", "events": [ENVELOPE, ...]}, or that of
//	          Config.Format                                                                request.go, body.go
//	                                                                                         binary.go
//	          a jq program, Config.Request, may make another body of it                    request_program.go, form.go
//	Acquire   waits for Config.Rate and Config.MaxInFlight                                 ratelimit.go
//	          gets a token, Config.OAuth2                                                  auth.go, oauth.go
//	Send      signs and posts, with Idempotency-Key: <group_id>, so that the server can
//	          recognize a batch that is sent again                                         send.go, transport.go
//	          classifyStatus: the status decides between delivered, rejected and outage    response.go, retryafter.go
//	          unless it is an outage, a jq program, Config.Results, may find in the
//	          response which events failed                                                 results.go
//
// New compiles both programs (programs.go). No error contains a secret (redact.go).
//
// Send returns a *sink.SplitError before the request if the batch has to be split: its events have
// different URLs or headers, or they exceed Config.MaxBytes.
//
// # Statuses
//
// 2xx means delivered. An outage is 3xx (redirects are not followed), 401, 403, 404, 405, 407, 408,
// 410, 421, 425, 429, 5xx, and no response at all. It lasts as long as Retry-After says, if it is given.
// Any other 4xx rejects the whole batch. Config.Refused and Config.Unavailable override this.
//
// An outage may be the batch's own fault (sink.ErrMaybePoison): a 5xx, or a timeout or a lost connection
// after the request was written. The delivery worker counts these to find poison events.
package httpsink
