-- tellFair tells the first who waits for a fair lock of the name, if there is one. Nobody is worse off than by a message that is lost if
-- the queue is on another node by now. Scripts that are given a queue have the functions of fair.lua.
local function tellFair(queue, times, ...)
  if queue then
    pcall(function(...)
      local first = head(lineOf(queue, times))
      if first then tell(first, ...) end
    end, ...)
  end
end
