// Package guardtest checks packages guard and httplock on the supported
// databases, each with the driver that most programs use. It is a separate
// module, so that users of dsync do not depend on these drivers.
package guardtest
