package testenv

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// ConsulServer is a private Consul.
type ConsulServer struct{ Server }

// Consul starts a Consul, built from its Go module. Settings are fields of its
// configuration in JSON, such as `"acl": {"enabled": true}`, or "". If Consul
// cannot be built, the test fails if CI is set, and is skipped otherwise.
func Consul(tb testing.TB, settings string) *ConsulServer {
	tb.Helper()
	binary, dir, port := builtBinary(tb, consulModule, "github.com/hashicorp/consul", "consul"), memoryDir(tb), freePort(tb)
	ports := fmt.Sprintf(`"ports": {"http": %d, "server": %d, "serf_lan": %d, "serf_wan": -1, "dns": -1, "grpc": -1}`, port, freePort(tb), freePort(tb))
	config := filepath.Join(dir, "config.json")
	if settings != "" {
		settings = ", " + settings
	}
	if err := os.WriteFile(config, []byte(`{"performance": {"raft_multiplier": 1}, "connect": {"enabled": false}, "disable_update_check": true, `+ports+settings+"}"), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &ConsulServer{}
	s.Server = Server{
		tb:    tb,
		name:  "consul",
		Addr:  fmt.Sprintf("127.0.0.1:%d", port),
		log:   filepath.Join(dir, "log"),
		argv:  []string{binary, "agent", "-server", "-bootstrap-expect", "1", "-bind", "127.0.0.1", "-data-dir", filepath.Join(dir, "data"), "-config-file", config, "-log-level", "warn"},
		ready: s.serves,
	}
	s.launch()
	return s
}

// serves makes one attempt to check whether the server is the leader and, if it
// has ACLs, knows its tokens.
func (s *ConsulServer) serves(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr+"/v1/kv/absent?consistent", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusNotFound && !bytes.Contains(text, []byte("Permission denied")) {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return err
}
