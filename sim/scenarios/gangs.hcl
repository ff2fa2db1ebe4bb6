# Jobs of one to eight places on two nodes of eight, at a load of 0.9, of which nothing is known
# before they report. Compare: -policy none@fifo,none@dynamic,none@easy,none@turns,none@las,none@queue,none@srtf
move_s = 60

node "gpus" {
  count = 2
  cores = 8
}

workload "generated" {
  jobs         = 120
  median_cpu_s = 3600
  sigma        = 1.2
  spread       = 1.11
  cap_cores    = [1, 2, 4, 8]
  asks         = true
}
