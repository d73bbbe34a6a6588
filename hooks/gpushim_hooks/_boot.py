import gc
import sys

gc.disable()  # milliseconds to live: nothing to collect
sys.path.insert(0, __file__.rpartition("/")[0].rpartition("/")[0])
from gpushim_hooks.main import main

main(sys.argv[1:])
