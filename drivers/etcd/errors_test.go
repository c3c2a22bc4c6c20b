package etcd

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-dsync/dsync/driver"
)

// TestErrorTable checks how the driver classifies etcd's errors: whether package
// dsync repeats the call, and whether the request may have been carried out.
func TestErrorTable(t *testing.T) {
	for _, class := range []struct {
		what   string
		kind   error // nil: a repeated request would fail too
		doubt  bool
		errors []error
	}{
		{"not carried out, for now", driver.ErrUnavailable, false, []error{
			rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader,
			rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCUnhealthy,
			rpctypes.ErrGRPCCorrupt, status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"),
			status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner"),
		}},
		{"perhaps carried out", driver.ErrUnknown, true, []error{
			rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail,
			rpctypes.ErrGRPCTimeoutDueToConnectionLost, rpctypes.ErrGRPCTimeoutWaitAppliedIndex, rpctypes.ErrGRPCCanceled,
			rpctypes.ErrGRPCDeadlineExceeded, rpctypes.ErrGRPCLeaseExist, // the answer to a grant that the library repeated
			status.Error(codes.Unavailable, "transport is closing"), status.Error(codes.Internal, "stream terminated by RST_STREAM"),
			status.Error(codes.Unknown, "an answer that no etcd has"),
		}},
		{"not permitted", fs.ErrPermission, false, []error{
			rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCAuthNotEnabled,
			rpctypes.ErrGRPCRoleNotFound, rpctypes.ErrGRPCUserNotFound,
		}},
		{"never carried out", nil, false, []error{
			rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCDuplicateKey, rpctypes.ErrGRPCEmptyKey,
			rpctypes.ErrGRPCKeyNotFound, rpctypes.ErrGRPCLeaseTTLTooLarge, rpctypes.ErrGRPCCompacted, rpctypes.ErrGRPCFutureRev,
		}},
	} {
		for _, answer := range class.errors {
			err, doubt := fault(context.Background(), answer)
			if doubt != class.doubt {
				t.Errorf("%s: %v: got doubt %t", class.what, answer, doubt)
			}
			for _, kind := range []error{driver.ErrUnavailable, driver.ErrUnknown, fs.ErrPermission} {
				if errors.Is(err, kind) != (kind == class.kind) {
					t.Errorf("%s: %v: got %v", class.what, answer, err)
				}
			}
		}
	}
}
