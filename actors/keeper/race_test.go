//go:build race

package keeper

const raceEnabled = true // memory is then not what it is without
