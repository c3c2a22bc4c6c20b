-- tellFair tells the first who waits for a fair lock of the name, if there is one
-- and the queue is on this node. It needs fair.lua.
local function tellFair(queue, times, ...)
  if queue then
    pcall(function(...)
      local first = head(lineOf(queue, times))
      if first then tell(first, ...) end
    end, ...)
  end
end
