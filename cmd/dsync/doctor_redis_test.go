package main

import (
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestDoctorOnRedis(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, "--appendonly", "yes")
	e := doctor(t, false, "redisson://"+s.Addr)
	e.no(warning)
	for _, check := range []string{"reach", "version", "eviction", "persistence", "replicas", "session limit", "clock", "rights", "open", "lock"} {
		e.want(check, ok, "", "")
	}
	for _, key := range s.Do("KEYS", "*").([]any) {
		if left := s.Do("PTTL", key.(string)).(int64); left == -1 {
			t.Errorf("the key %s stays for ever", key)
		}
	}

	s.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	doctor(t, true, "redisson://"+s.Addr).want("eviction", fault, "allkeys-lru", "maxmemory-policy noeviction")
	doctor(t, false, "redisson://"+s.Addr+"?evict=allow").want("eviction", warning, "allkeys-lru", "maxmemory-policy noeviction")
	s.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	s.Do("CONFIG", "SET", "appendonly", "no")
	doctor(t, false, "redisson://"+s.Addr).want("persistence", warning, "forgotten", "appendonly yes")
	s.Do("CONFIG", "SET", "maxclients", "12")
	doctor(t, false, "redisson://"+s.Addr).want("session limit", warning, "of 12 connections", "maxclients")
}

func TestDoctorOnRedisReplica(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, "--replicaof", "127.0.0.1 1")
	doctor(t, true, "redisson://"+s.Addr).want("read-only", fault, "replica", "the address of the primary")
}

func TestDoctorOnRedisClock(t *testing.T) {
	t.Parallel()
	s, clock := testenv.RedisClock(t)
	clock.Set(time.Minute)
	doctor(t, false, "redisson://"+s.Addr).want("clock", warning, "ahead of", "NTP")
	clock.Set(-time.Hour)
	doctor(t, false, "redisson://"+s.Addr).want("clock", warning, "behind", "NTP")
}

func TestDoctorOnRedisTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	s := testenv.RedisTLS(t, certs, "--tls-auth-clients", "no")
	url := "redisson://" + s.Addr + "?tls=true"
	doctor(t, false, url+"&tls_ca="+certs.CAFile).want("TLS", ok, "valid", "")
	doctor(t, true, url+"&tls_server_name=locks.example&tls_ca="+certs.CAFile).want("TLS name", fault, "for localhost, 127.0.0.1, and not for locks.example", "tls_server_name=")
	doctor(t, true, url).want("TLS", fault, "authority", "tls_ca=")
	doctor(t, true, "redisson://"+s.Addr).want("reach", fault, "", "tls=true")
}

// TestDoctorKnowsEachRight takes away one right after the other of those in docs/security.md.
func TestDoctorKnowsEachRight(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	password := testenv.Password()
	words := strings.Fields(drivertest.Recipe(t, "**Redis, `redisson://`**"))
	rights := words[slices.Index(words, "resetkeys"):]
	for _, row := range []string{"`Read`, `Write`", "`Inspect`, `ForceUnlock`", "`List`"} {
		rights = append(rights, drivertest.RecipeRow(t, row)...)
	}
	user := func(without string) string {
		args := []string{"ACL", "SETUSER", "app", "reset", "on", ">" + password}
		s.Do(append(args, slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == without })...)...)
		return "redisson://app:" + password + "@" + s.Addr
	}
	e := doctor(t, false, user(""), "--name", "lk:doctor")
	for _, f := range e.Findings {
		if f.Check == "rights" && f.Level != ok {
			t.Errorf("with all rights: %+v", f)
		}
	}
	doctor(t, true, strings.Replace(user(""), password, testenv.PasswordMark+"wrong", 1)).want("password", fault, "WRONGPASS", "the right user and password")
	for _, right := range rights {
		switch right {
		case "resetkeys", "resetchannels", "-@all", "+hello", "+auth", "+unsubscribe": // nobody is asked for these
			continue
		}
		e := examined{t: t}
		e.Findings = examine(t.Context(), user(right), "lk:doctor", drivertest.HangGuard).Findings
		found := slices.ContainsFunc(e.Findings, func(f finding) bool {
			return f.Check == "rights" && f.Level != ok && slices.ContainsFunc(strings.Fields(f.Cure), func(word string) bool {
				return word == right || right[0] != '+' && strings.HasPrefix(word, strings.TrimSuffix(right, "*"))
			})
		})
		if !found {
			t.Errorf("without %s: %+v", right, e.Findings)
		}
	}
}

var versionInHello = regexp.MustCompile(`(version\r\n\$)\d+\r\n[0-9.]+`)

// TestDoctorOnOldRedis has a proxy change the version that a server tells.
func TestDoctorOnOldRedis(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				client.Close()
				continue
			}
			go func() { // ends with the client
				_, _ = io.Copy(server, client)
				server.Close()
			}()
			go func() { // ends with the server
				defer client.Close()
				for b := make([]byte, 64<<10); ; {
					n, err := server.Read(b)
					if _, err := client.Write(versionInHello.ReplaceAll(b[:n], []byte("${1}5\r\n6.0.9"))); err != nil {
						return
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	doctor(t, true, "redisson://"+l.Addr().String()).want("version", fault, "Redis 6.0.9", "6.2 or newer")
}
