//go:build !race

package jq

const memoryFactor = 1
