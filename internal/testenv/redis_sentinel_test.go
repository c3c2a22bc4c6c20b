package testenv

import "testing"

func TestRedisSentinel(t *testing.T) {
	s := RedisSentinel(t, 2)
	old := s.Primary()
	if old != s.Nodes[0] {
		t.Fatalf("primary: got %s, want %s", old.Addr, s.Nodes[0].Addr)
	}
	old.Do("SET", "k", "v")
	old.AwaitReplicas(2)
	old.Kill()
	Eventually(t, func() bool { return s.Primary() != old }, "the sentinels name another primary")
	primary := s.Primary()
	if got := primary.Do("ROLE").([]any)[0]; got != "master" {
		t.Errorf("role of the new primary: got %s, want master", got)
	}
	if got := primary.Do("GET", "k"); got != "v" {
		t.Errorf("GET after the failover: got %v, want v", got)
	}
	old.Start()
	Eventually(t, old.replicates, "the old primary follows the new primary")
}

func TestRedisSentinelWithPassword(t *testing.T) {
	password := Password()
	s := RedisSentinel(t, 1, "--requirepass", password, "--masterauth", password)
	s.Primary().Do("SET", "k", "v")
	s.Sentinels[0].Restart()
	Eventually(t, func() bool { return s.informed(s.Sentinels[0], 1) }, "a restarted sentinel knows the other sentinels")
}
