package testserver

// Program is program, for its test.
var Program = program

// PortBlock is portBlock, for a test.
const PortBlock = portBlock
