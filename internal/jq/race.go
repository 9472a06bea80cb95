//go:build race

package jq

// memoryFactor counts what the race detector takes for each byte of the heap.
const memoryFactor = 6
