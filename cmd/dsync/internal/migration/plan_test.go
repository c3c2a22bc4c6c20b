package migration

import "testing"

func TestWithoutPassword(t *testing.T) {
	for raw, want := range map[string]string{
		"etcd://a:1,b:2/p/":                        "etcd://a:1,b:2/p/",
		"etcd://u@a:1/p/":                          "etcd://u@a:1/p/",
		"pglock://a:x@b:y@h/db?password=z&c=d":     "pglock://a:PASSWORD@h/db?password=PASSWORD&c=d",
		"redisson://:x@h?sentinel_password=y":      "redisson://:PASSWORD@h?sentinel_password=PASSWORD",
		"pglock://u@h/db?sslpassword=y&sslmode=no": "pglock://u@h/db?sslpassword=PASSWORD&sslmode=no",
	} {
		if got := withoutPassword(raw); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
