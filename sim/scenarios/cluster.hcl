# Sixty jobs on eight unequal nodes, as in FlowCon's largest run, where one took 5.8 times
# as long as before. Compare: -policy flowcon@alg4,specon,auto,auto@relocate
placement = "spread"
move_s    = 5

node "small" {
  count = 4
  cores = 4
}
node "large" {
  count = 4
  cores = 16
}

workload "papers" {
  jobs         = 60
  median_cpu_s = 1500
  over_s       = 600
  cap_cores    = [4, 8, 16]
}
