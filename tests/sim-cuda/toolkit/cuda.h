// The toolkit's file of this name declares the driver's functions. The examples use none.
#pragma once
