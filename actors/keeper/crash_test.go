package keeper

func workerMain([]string) int { return 0 }
