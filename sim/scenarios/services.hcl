# Ten services with response times to keep (DQoES), with five jobs.
node "node" { cores = 8 }

workload "generated" { jobs = 5 }

service "strict" {
  count       = 2
  objective_s = 2
  batch_cpu_s = 2
  for_s       = 900
}
service "easy" {
  count       = 8
  objective_s = 20
  batch_cpu_s = 4
  for_s       = 900
}
