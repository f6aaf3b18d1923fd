from benchmark.policies import *  # until the report's room is built
