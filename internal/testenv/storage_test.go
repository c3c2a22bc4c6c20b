package testenv

import (
	"os"
	"testing"
)

func TestStorageOnDisk(t *testing.T) {
	if inMemory(os.TempDir()) {
		t.Skip("the temporary directory is in memory")
	}
	s := Storage{Disk: true}.Redis(t)
	s.Do("SET", "k", "v")
	s.Restart()
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("GET after a restart: got %v, want v", got)
	}
	if got := s.Do("CONFIG", "GET", "appendfsync").([]any)[1]; got != "everysec" {
		t.Errorf("appendfsync: got %v, want everysec", got)
	}
}
