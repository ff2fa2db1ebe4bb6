# Fifteen jobs of the arrival lists of AdaptDL, with real training curves (-data). A job can
# use as many cores as it had replicas.
node "node" { cores = 8 }

workload "adaptdl" {
  jobs         = 15
  median_cpu_s = 800
  spread       = 0.25
}
