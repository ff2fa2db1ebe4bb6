# Fifteen jobs of the arrival lists of AdaptDL, with real training curves (-data).
node "node" { cores = 8 }

workload "adaptdl" {
  jobs         = 15
  median_cpu_s = 600
  spread       = 0.25
  cap_cores    = [1, 2, 4, 8] # of which each job has one
}
