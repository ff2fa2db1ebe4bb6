# As cluster, but threads wait for each other: sixteen cores are not even twice as fast as one.
overhead  = 0.5
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
