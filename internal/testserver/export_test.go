package testserver

// Program is program, for its test.
var Program = program
