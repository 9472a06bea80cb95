//go:build !unix

package filesink

// noFollow is empty where the system has no such flag; the check before opening must do.
const noFollow = 0
