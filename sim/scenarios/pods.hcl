# Pods of a production cluster that wait for the cores they ask for, at a load of 0.9 (-data).
# Compare: -jobs 120 -policy none@queue,none@srtf
move_s = 60

node "node" {
  count = 2
  cores = 128
}

workload "alibaba" {
  jobs         = 40
  median_cpu_s = 3200
  spread       = 1.11
  asks         = true
}
