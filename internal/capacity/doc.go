// Package capacity has the simulation behind docs/capacity.md: clients of
// package dsync on drivers/memory, in the fake time of testing/synctest, where
// each request takes the time that was measured on a real backend. All of it is
// tests.
package capacity
