# Jobs of one place that wait for one of four, at a load of 0.9. Compare:
# -policy none@fifo,none@las,none@queue,none@srtf
sizes      = "exact"
size_error = 0.3
move_s     = 60

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
