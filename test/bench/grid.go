package bench

// Targets is the grid of what dsync has to reach on a machine of 2 CPUs.
var Targets = []Target{}
