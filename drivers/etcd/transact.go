package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// transact carries out a transaction by a request of its own. An answer of another shape is errAnswer: what listens at the address need not be etcd.
func (d *Driver) transact(ctx context.Context, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	answer, err := d.client.Txn(ctx).If(compare...).Then(then...).Else(otherwise...).Commit()
	if err == nil && !answers(answer, then, otherwise) {
		err = errAnswer
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// answers reports whether an answer has the shape of one to a transaction.
func answers(answer *clientv3.TxnResponse, then, otherwise []clientv3.Op) bool {
	asked := then
	if !answer.Succeeded {
		asked = otherwise
	}
	if answer.Header == nil || len(answer.Responses) != len(asked) {
		return false
	}
	for i, a := range asked {
		r := answer.Responses[i]
		if a.IsGet() && r.GetResponseRange() == nil || a.IsPut() && r.GetResponsePut() == nil || a.IsDelete() && r.GetResponseDeleteRange() == nil ||
			a.IsTxn() && r.GetResponseTxn() == nil {
			return false
		}
	}
	return true
}
