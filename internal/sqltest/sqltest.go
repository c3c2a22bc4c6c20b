// Package sqltest tests drivers/sqllock on servers. The clients of the
// databases are requirements of this module only.
package sqltest
