package main

import "slices"

// The mutants, each with the test that must kill it. docs/guarantees.md names the tests.
var mutants = slices.Concat(accessMutants, batchMutants, claimMutants, customMutants, deadLetterMutants, fillMutants, retentionMutants, routingMutants, secretMutants, sinkMutants, sqliteSinkMutants, tracingMutants, trustMutants)
