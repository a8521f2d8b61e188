"""What is written afterwards: metrics, report, export; and the trained network, loaded again."""
