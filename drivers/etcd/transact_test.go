package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestAnswersOfAnotherShape: an answer that lacks what was asked for, or has something else in its place, is none.
func TestAnswersOfAnotherShape(t *testing.T) {
	get := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}}
	put := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	deletion := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{}}}
	nested := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{}}}
	all := []*pb.ResponseOp{get, put, deletion, nested}
	then := []clientv3.Op{clientv3.OpGet("a"), clientv3.OpPut("a", ""), clientv3.OpDelete("a"), clientv3.OpTxn(nil, nil, nil)}
	answered := func(succeeded bool, responses ...*pb.ResponseOp) bool {
		return answers(&clientv3.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: succeeded, Responses: responses}, then, then[:1])
	}
	if !answered(true, all...) || !answered(false, get) {
		t.Error("an answer of the right shape is none")
	}
	if answers(&clientv3.TxnResponse{Succeeded: true, Responses: all}, then, nil) {
		t.Error("one without a header is an answer")
	}
	if answered(true) || answered(false) || answered(true, get) || answered(false, all...) {
		t.Error("too few or too many responses are an answer")
	}
	for i := range all {
		for _, other := range []*pb.ResponseOp{all[(i+1)%len(all)], {}} {
			wrong := append(append([]*pb.ResponseOp{}, all[:i]...), other)
			if answered(true, append(wrong, all[i+1:]...)...) {
				t.Errorf("%v in place of response %d is an answer", other, i)
			}
		}
	}
}
