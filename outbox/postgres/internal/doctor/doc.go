// Package doctor looks for what is wrong with a buffer's database: the server, tables and
// privileges, the claim's plan, vacuum, and sessions that block vacuum. It changes nothing, except
// that Terminate ends a session. A finding has a fix that an operator can run.
package doctor
