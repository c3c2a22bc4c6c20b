// Package capacity contains the simulation behind docs/capacity.md. Clients of
// package dsync use drivers/memory in the fake time of testing/synctest, where
// each request takes the time that was measured on a real backend. The package
// consists only of tests.
package capacity
