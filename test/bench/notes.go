package bench

// Notes say what stands in the way of a target, and what was tried. The table has them where the target is missed.
var Notes = map[subject]string{}
