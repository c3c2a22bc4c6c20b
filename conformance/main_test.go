package conformance

import "testing"

func TestMain(m *testing.M) {
	RunWorker()
	m.Run()
}
