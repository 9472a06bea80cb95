// Package console is the operator's web console: what is wrong, since when, what happens by itself, and what to do.
//
//	/                        overview: problems, pipelines and sinks, relays; live
//	/pipelines/{name}        one pipeline: charts of the last hour and day, what waits and why
//	/batches                 live batches: with whom, until when, why they wait; retry and division of one
//	/dead                    dead letters: by error, filtered; replay and discard of some or all
//	/dead/{pipeline}/{id}    the dead letters of one event; edit and replay
//	/doctor                  what relay doctor finds, with the fixes; what blocks vacuum
//	/try                     the requests that events would make, and what an answer means
//	/activity                what users did at this process, and the level of its log
//	/login, /logout          a session for a token
//	/live                    what changed on the overview, as server-sent events
//	/assets/                 style, script and chart library
//
// Pages are rendered on the server and can be read without JavaScript; a script keeps the overview live, draws the charts and shows
// times in the viewer's zone. All links are relative, so the console works below any path of a reverse proxy or of an application. A
// strict Content-Security-Policy allows the console's own files only.
//
// # Figures
//
// A sampler reads the status of all pipelines every ten seconds, and every second while a browser shows the overview. It keeps an hour in
// steps of ten seconds and a day in steps of four minutes, in memory: see history. What is delivered a second, and how long it took, is
// added up over all relays of a database, because they report to it.
package console
