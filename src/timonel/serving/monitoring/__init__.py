"""What a server tells about itself: metrics, recent latencies, traces."""
