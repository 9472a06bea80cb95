// Package catalog reads what PostgreSQL's catalog says of a table: whether it exists, its
// columns, and what the connection's role may do with it.
package catalog
