package limits

type Resources struct{ MemoryBytes, BlockBytes, NetworkBytes float64 }

func (c *Cgroup) Resources() Resources { return Resources{} }
