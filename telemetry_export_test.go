package dsync

// WithoutTelemetry makes a new client report nothing, without even looking for global providers.
func WithoutTelemetry(c *Client) {
	c.telemetry.wanted.Store(false)
	c.telemetry.tracerSet, c.telemetry.noTracerYet = false, nil
	c.telemetry.meterSet, c.telemetry.noMeterYet = false, nil
}
