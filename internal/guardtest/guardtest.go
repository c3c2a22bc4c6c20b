// Package guardtest checks packages guard and httplock on the databases that it
// knows, each by the driver that most programs have. It is a module of its own,
// so that users of dsync do not get these drivers.
package guardtest
