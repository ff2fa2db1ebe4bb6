# Jobs of one place on four nodes of one. A suspended job goes on only where its checkpoint is.
# Compare: -policy none@turns,none@las,none@queue
sizes      = "exact"
size_error = 0.3
move_s     = 60
local      = true

node "gpu" {
  count = 4
  cores = 1
}

workload "generated" {
  jobs         = 60
  median_cpu_s = 3600
  sigma        = 1.2
  spread       = 1.11
  cap_cores    = [1]
  asks         = true
}
