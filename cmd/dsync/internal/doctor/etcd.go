package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

const seeEtcd = "docs/backends/etcd.md#faults"

func examineEtcd(ctx context.Context, x *examination) bool {
	config := clientv3.Config{DialTimeout: x.connect, Logger: zap.NewNop()}
	var err error
	if config.TLS, err = tlsurl.Read(x.url); err != nil {
		x.bad(fault, "URL", err.Error(), "see the message", seeTLS)
		return false
	}
	if config.Endpoints = x.reach(ctx, x.url.HostsWithPort("localhost", "2379"), config.TLS); len(config.Endpoints) == 0 {
		return false
	}
	if config.TLS != nil && config.TLS.ServerName != "" {
		config.TLS = config.TLS.Clone()
		// reach has already checked the name in the certificate. The library
		// would check the wrong name, the host's.
		config.TLS.InsecureSkipVerify = true
	}
	config.Username = x.url.User.Username()
	if config.Password, err = x.password(); err != nil {
		x.bad(fault, "URL", err.Error(), "see the message", seePasswords)
		return false
	}
	client, err := clientv3.New(config)
	if err != nil {
		x.etcdLogin(err)
		return false
	}
	defer client.Close()
	statuses := map[string]*clientv3.StatusResponse{}
	for _, endpoint := range config.Endpoints {
		statuses[endpoint] = x.etcdMember(ctx, client, endpoint)
	}
	x.etcdGroups(statuses, config.Endpoints)
	x.etcdMembers(ctx, client)
	x.etcdRights(ctx, client)
	return true
}

func (x *examination) etcdLogin(err error) {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		x.bad(fault, "password", "the server rejects this user and password", "put the correct user and password in the URL, with special characters as %XX; "+
			"or run etcdctl user passwd", seePasswords)
		return
	}
	x.bad(fault, "reach", fmt.Sprintf("no server answers: %v", err), "is etcd listening there? does it have a majority?", seeEtcd)
}

// etcdMember queries one server and returns its status, or nil.
func (x *examination) etcdMember(ctx context.Context, client *clientv3.Client, endpoint string) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		x.bad(fault, "reach", fmt.Sprintf("%s accepts connections but does not answer: %v", endpoint, err),
			"is etcd listening there? does it require TLS (tls=true)?", seeTLS)
		return nil
	}
	x.etcdStatus(endpoint, status)
	return status
}

// etcdStatus judges the status of a server.
func (x *examination) etcdStatus(endpoint string, status *clientv3.StatusResponse) {
	major, minor, _ := parseVersion(status.Version)
	switch {
	case major < 3 || major == 3 && minor < 4:
		x.bad(fault, "version", fmt.Sprintf("%s is etcd %s, and the oldest supported version is 3.4", endpoint, status.Version), "install etcd 3.5.13 or newer", seeReach)
	case major == 3 && minor == 4:
		x.bad(warning, "version", fmt.Sprintf("%s is etcd %s: after a restart of the server, existing clients with a user get no answer", endpoint, status.Version),
			"install etcd 3.5.13 or newer", seeRights)
	default:
		x.good("version", "%s is etcd %s", endpoint, status.Version)
	}
	if status.Leader == 0 {
		x.bad(fault, "leader", endpoint+" knows no leader: nothing is granted", "make sure that a majority of the members are up and can reach each other", seeEtcd)
	}
	if status.IsLearner {
		x.bad(warning, "read-only", endpoint+" is a learner, which refuses most requests, so clients avoid it", "run etcdctl member promote, or put other hosts in the URL", seeEtcd)
	}
	for _, text := range status.Errors {
		x.bad(fault, "alarm", endpoint+": "+text, "for NOSPACE: compact and defragment, raise --quota-backend-bytes, then etcdctl alarm disarm", seeEtcd)
	}
}

// etcdMembers checks the number of members.
func (x *examination) etcdMembers(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		return // not every user may list members
	}
	x.etcdNumber(len(list.Members))
}

// etcdNumber judges the number of members.
func (x *examination) etcdNumber(n int) {
	switch {
	case n == 1:
		x.bad(note, "members", "one server: while it is down, nothing is granted", "use three servers if that matters", seeEtcd)
	case n%2 == 0:
		x.bad(warning, "members", fmt.Sprintf("%d members tolerate no more losses than %d", n, n-1), "use an odd number of members", seeEtcd)
	default:
		x.good("members", "%d members: %d of them may be lost", n, n/2)
	}
}

// etcdRights tests the rights for the driver's operations. The puts and deletes
// are in transaction branches that are never executed, but the server checks
// their permissions anyway.
func (x *examination) etcdRights(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	prefix := strings.TrimPrefix(x.url.Path, "/")
	key := prefix + x.name + "/doctor"
	never := clientv3.Compare(clientv3.Version(key), ">", 1<<40)
	var missing []string
	try := func(what string, err error) {
		if err == nil {
			return
		}
		if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
			missing = append(missing, what)
			return
		}
		x.bad(fault, "rights", fmt.Sprintf("%s: %v", what, err), "see the message", seeRights)
	}
	_, err := client.Get(ctx, prefix+x.name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	try("read", err)
	_, err = client.Txn(ctx).If(never).Then(clientv3.OpPut(key, "")).Commit()
	try("write", err)
	_, err = client.Txn(ctx).If(never).Then(clientv3.OpDelete(key)).Commit()
	try("delete", err)
	lease, err := client.Grant(ctx, int64(5*time.Second/time.Second))
	try("leases", err)
	if err == nil {
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), cli.CloseLimit)
		defer cancel()
		_, err = client.Revoke(revoking, lease.ID)
		try("leases", err)
	}
	if len(missing) == 0 {
		x.good("rights", "the user may read and write below %q", prefix)
		return
	}
	x.bad(fault, "rights", fmt.Sprintf("below %q the user lacks the rights to: %s", prefix, strings.Join(missing, ", ")),
		fmt.Sprintf("etcdctl role grant-permission ROLE --prefix=true readwrite %s", prefix), seeRights)
}
