from benchmark.files import *  # until the report's room is built
